"""One file per method of the paper; each registers itself in `METHODS` when it is imported."""

# isort: off
# in the order of the paper's tables, which is that of METHODS
from phenogroups.methods.base import Method as Method
from phenogroups.methods.deep import DeepMethod as DeepMethod
from phenogroups.methods.prediction import Prediction as Prediction
from phenogroups.methods.kmeans import PlainKMeans as PlainKMeans
from phenogroups.methods.gaussian_mixture import PlainGaussianMixture as PlainGaussianMixture
from phenogroups.methods.deep_cluster import DeepCluster as DeepCluster
from phenogroups.methods.pcl import PCL as PCL
from phenogroups.methods.byol import BYOL as BYOL
from phenogroups.methods.scan import SCAN as SCAN
from phenogroups.methods.swav import SwAV as SwAV
from phenogroups.methods.simclr import SimCLR as SimCLR
from phenogroups.methods.autoencoder import Autoencoder as Autoencoder
from phenogroups.methods.vae import VAE as VAE
from phenogroups.methods.mixture_of_experts import MixtureOfExperts as MixtureOfExperts
from phenogroups.methods.classifier import Classifier as Classifier
from phenogroups.methods.supcon import SupCon as SupCon
from phenogroups.methods.foundation import Foundation as Foundation
from phenogroups.methods.ucsl import UCSL as UCSL
from phenogroups.methods.hydra import HYDRA as HYDRA
from phenogroups.methods.vae_ucsl import VAEUCSL as VAEUCSL
from phenogroups.methods.ws_deep_cluster import WSDeepCluster as WSDeepCluster
from phenogroups.methods.deep_ucsl import DeepUCSL as DeepUCSL
from phenogroups.methods.consensus import Consensus as Consensus
from phenogroups.methods.supervised import SupervisedSubgroups as SupervisedSubgroups
from phenogroups.methods.registry import METHODS as METHODS
from phenogroups.methods.registry import build_method as build_method
from phenogroups.methods.registry import load as load
from phenogroups.methods.registry import name_of as name_of
from phenogroups.methods.registry import settings_of as settings_of
